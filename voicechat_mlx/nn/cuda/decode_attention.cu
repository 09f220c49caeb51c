// softmax(q kᵀ) v for one new frame over a key/value buffer whose first min(offset + 1, capacity) slots are filled.
// One block per row and head; each warp takes every eighth slot and keeps a running maximum, sum and mean. q is scaled.
constexpr int WARPS = 8, P = (D + 31) / 32;
__shared__ float maxima[WARPS], totals[WARPS], means[WARPS][D];
const int H = q_shape[1], HK = keys_shape[1], C = keys_shape[2];
const int row = blockIdx.x / H, head = blockIdx.x % H;
const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
const int filled = min(offset[0] + 1, C);
const size_t base = static_cast<size_t>(row * HK + head / (H / HK)) * C * D;
float query[P], mean[P] = {}, maximum = -ENDLESS, total = 0.0f;
for (int i = 0; i < P; i++) {
  const int d = lane + 32 * i;
  query[i] = d < D ? up(q[blockIdx.x * D + d]) : 0.0f;
}
for (int slot = warp; slot < filled; slot += WARPS) {
  const size_t at = base + static_cast<size_t>(slot) * D;
  float score = 0.0f;
  for (int i = 0; i < P; i++) {
    const int d = lane + 32 * i;
    score += d < D ? query[i] * up(keys[at + d]) : 0.0f;
  }
  score = warp_sum(score);
  const float higher = fmaxf(maximum, score);
  const float fade = expf(maximum - higher), weight = expf(score - higher);
  total = total * fade + weight;
  for (int i = 0; i < P; i++) {
    const int d = lane + 32 * i;
    mean[i] = mean[i] * fade + (d < D ? weight * up(values[at + d]) : 0.0f);
  }
  maximum = higher;
}
join_means<WARPS, D>(maxima, totals, means, maximum, total, mean, out + blockIdx.x * D);
