// The mean and log scale of a component drawn from the talker's mixture, by a single block. Rows of `projected`, conditional
// and not, hold the components' logits, LATENT numbers of `proj_else` and the log scale; guidance joins them.
// A component is in the nucleus while the mass above it is below `options[0]`; the Gumbel-largest of those is drawn: it is
// looked for among all, and only if it is outside, in few draws of a hundred, the next largest is looked at.
constexpr int WARPS = 32, WIDTH = COMPONENTS + LATENT + 1;
__shared__ float logits[COMPONENTS], masses[COMPONENTS], hidden[HIDDEN], low[RANK];
const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
const float top_p = options[0], guidance = options[1], least = options[2];
auto joined = [&](const T* rows, int width, int i) { return up(rows[i]) + guidance * (up(rows[i]) - up(rows[width + i])); };
float highest = -ENDLESS;
int component = COMPONENTS;
for (int i = threadIdx.x; i < COMPONENTS; i += blockDim.x) {
  logits[i] = joined(projected, WIDTH, i);
  highest = fmaxf(highest, logits[i]);
}
for (int i = threadIdx.x; i < HIDDEN; i += blockDim.x) {
  hidden[i] = joined(x, HIDDEN, i);
}
warp_best(highest, component);
block_best<WARPS>(highest, component);
float mass = 0.0f;
for (int i = threadIdx.x; i < COMPONENTS; i += blockDim.x) {
  masses[i] = expf(logits[i] - highest);
  mass += masses[i];
}
const float all = block_sum(mass);
float last_score = ENDLESS;
int last = -1;
while (true) {
  float score = -ENDLESS;
  component = COMPONENTS;
  for (int i = threadIdx.x; i < COMPONENTS; i += blockDim.x) {
    const float drawn = logits[i] + gumbel[i];
    if ((drawn < last_score || (drawn == last_score && i > last)) && drawn > score) {
      score = drawn;
      component = i;
    }
  }
  warp_best(score, component);
  block_best<WARPS>(score, component);
  if (component == COMPONENTS) {  // no score is a number
    component = 0;
    break;
  }
  float above = 0.0f;
  for (int i = threadIdx.x; i < COMPONENTS; i += blockDim.x) {
    above += logits[i] > logits[component] || (logits[i] == logits[component] && i < component) ? masses[i] : 0.0f;
  }
  if (block_sum(above) < top_p * all) {
    break;
  }
  last_score = score;
  last = component;
}
for (int r = warp; r < RANK; r += WARPS) {
  const W* row = mus + (static_cast<size_t>(component) * RANK + r) * HIDDEN;
  float sum = 0.0f;
#pragma unroll 12
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
#pragma unroll 4
for (int d = warp; d < LATENT; d += WARPS) {
  const W* row = low_mat + (static_cast<size_t>(component) * LATENT + d) * RANK;
  float sum = 0.0f;
  for (int r = lane; r < RANK; r += 32) {
    sum += up(row[r]) * low[r];
  }
  sum = warp_sum(sum);
  if (lane == 0) {
    mean[d] = sum * deviation + joined(projected, WIDTH, COMPONENTS + d);
  }
}
