// Relative-position attention of one new frame over its window: score_j = ((q + u) · k_j + (q + w) · p_j) / √D.
// The window is LEFT earlier frames, of which at most the newest `seen` are real, and the new one, which also moves into the
// returned windows. One block per head.
constexpr int WARPS = 32, P = (D + 31) / 32;
__shared__ float maxima[WARPS], totals[WARPS], means[WARPS][D];
const T *q = qkv, *k = qkv + WIDTH, *v = qkv + 2 * WIDTH;
const int head = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
float content[P], place[P], mean[P] = {}, maximum = -ENDLESS, total = 0.0f;
for (int i = 0; i < P; i++) {
  const int d = lane + 32 * i;
  const float query = d < D ? up(q[head * D + d]) : 0.0f;
  content[i] = d < D ? query + up(u[head * D + d]) : 0.0f;
  place[i] = d < D ? query + up(w[head * D + d]) : 0.0f;
}
#pragma unroll
for (int j = warp; j <= LEFT; j += WARPS) {
  const T* key = (j < LEFT ? key_tail + static_cast<size_t>(j) * WIDTH : k) + head * D;
  const T* value = (j < LEFT ? value_tail + static_cast<size_t>(j) * WIDTH : v) + head * D;
  if (j > 0) {
    const size_t moved = static_cast<size_t>(j - 1) * WIDTH + head * D;
    for (int d = lane; d < D; d += 32) {
      next_keys[moved + d] = key[d];
      next_values[moved + d] = value[d];
    }
  }
  if (j < LEFT - seen[0]) {
    continue;
  }
  const T* position = positions + (static_cast<size_t>(head) * (LEFT + 1) + j) * D;
  float score = 0.0f;
  for (int i = 0; i < P; i++) {
    const int d = lane + 32 * i;
    score += d < D ? content[i] * up(key[d]) + place[i] * up(position[d]) : 0.0f;
  }
  score = warp_sum(score) * rsqrtf(static_cast<float>(D));
  const float higher = fmaxf(maximum, score);
  const float fade = expf(maximum - higher), weight = expf(score - higher);
  total = total * fade + weight;
  for (int i = 0; i < P; i++) {
    const int d = lane + 32 * i;
    mean[i] = mean[i] * fade + (d < D ? weight * up(value[d]) : 0.0f);
  }
  maximum = higher;
}
join_means<WARPS, D>(maxima, totals, means, maximum, total, mean, out + head * D);
