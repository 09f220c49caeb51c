// out[r, n] = Σ_k x[r, k] · w[n, k] for a few rows: one warp per output, each weight read once for all rows.
constexpr int V = 16 / sizeof(W);
const int N = w_shape[0], K = w_shape[1];
const int lane = threadIdx.x % 32;
const int n = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
if (n >= N) {
  return;
}
float sums[R] = {};
const W* row = w + static_cast<size_t>(n) * K;
for (int k = lane * V; k < K; k += 32 * V) {
  const uint4 packed = *reinterpret_cast<const uint4*>(row + k);
  const W* weights = reinterpret_cast<const W*>(&packed);
#pragma unroll
  for (int r = 0; r < R; r++) {
#pragma unroll
    for (int i = 0; i < V; i++) {
      sums[r] += up(weights[i]) * up(x[r * K + k + i]);
    }
  }
}
for (int r = 0; r < R; r++) {
  const float total = warp_sum(sums[r]);
  if (lane == 0) {
    out[r * N + n] = static_cast<X>(total);
  }
}
