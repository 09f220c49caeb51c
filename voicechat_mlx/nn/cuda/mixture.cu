// The mean and log scale of a component drawn from the talker's mixture, by a single block. Rows of `projected`, conditional
// and not, hold the components' logits, LATENT numbers of `proj_else` and the log scale; guidance joins them.
// A component is in the nucleus while the mass above it is below `options[0]`; the Gumbel-largest of those is drawn.
constexpr int WARPS = 16, WIDTH = COMPONENTS + LATENT + 1;
__shared__ float logits[COMPONENTS], masses[COMPONENTS], hidden[HIDDEN], low[RANK];
const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
const float top_p = options[0], guidance = options[1], least = options[2];
auto joined = [&](const T* rows, int width, int i) { return up(rows[i]) + guidance * (up(rows[i]) - up(rows[width + i])); };
for (int i = threadIdx.x; i < COMPONENTS; i += blockDim.x) {
  logits[i] = joined(projected, WIDTH, i);
}
for (int i = threadIdx.x; i < HIDDEN; i += blockDim.x) {
  hidden[i] = joined(x, HIDDEN, i);
}
__syncthreads();
float highest = -ENDLESS;
for (int i = 0; i < COMPONENTS; i++) {
  highest = fmaxf(highest, logits[i]);
}
float mass = 0.0f;
for (int i = threadIdx.x; i < COMPONENTS; i += blockDim.x) {
  masses[i] = expf(logits[i] - highest);
  mass += masses[i];
}
const float all = block_sum(mass);
float score = -ENDLESS;
int component = COMPONENTS;
for (int i = threadIdx.x; i < COMPONENTS; i += blockDim.x) {
  float above = 0.0f;
  for (int j = 0; j < COMPONENTS; j++) {
    above += logits[j] > logits[i] || (logits[j] == logits[i] && j < i) ? masses[j] : 0.0f;
  }
  const float drawn = logits[i] + gumbel[i];
  if (above < top_p * all && drawn > score) {
    score = drawn;
    component = i;
  }
}
warp_best(score, component);
block_best<WARPS>(score, component);
for (int r = warp; r < RANK; r += WARPS) {
  const W* row = mus + (static_cast<size_t>(component) * RANK + r) * HIDDEN;
  float sum = 0.0f;
  for (int k = lane; k < HIDDEN; k += 32) {
    sum += up(row[k]) * hidden[k];
  }
  sum = warp_sum(sum);
  if (lane == 0) {
    low[r] = sum;
  }
}
__syncthreads();
const float scale = fmaxf(joined(projected, WIDTH, WIDTH - 1), least), deviation = expf(scale);
if (threadIdx.x == 0) {
  log_std[0] = scale;
}
for (int d = threadIdx.x; d < LATENT; d += blockDim.x) {
  const W* row = low_mat + (static_cast<size_t>(component) * LATENT + d) * RANK;
  float sum = 0.0f;
  for (int r = 0; r < RANK; r++) {
    sum += up(row[r]) * low[r];
  }
  mean[d] = sum * deviation + joined(projected, WIDTH, COMPONENTS + d);
}
