// x + y, or with POST x + norm(y) · post; and with NEXT also the norm of that sum · pre. One block per row.
__shared__ float row[WIDTH];
const size_t base = static_cast<size_t>(blockIdx.x) * WIDTH;
float inverse = 1.0f;
if (POST) {
  float squares = 0.0f;
  for (int d = threadIdx.x; d < WIDTH; d += blockDim.x) {
    squares += up(y[base + d]) * up(y[base + d]);
  }
  inverse = rsqrtf(block_sum(squares) / WIDTH + eps[0]);
}
float sum_squares = 0.0f;
for (int d = threadIdx.x; d < WIDTH; d += blockDim.x) {
  const T rounded = static_cast<T>(up(x[base + d]) + up(y[base + d]) * (POST ? inverse * up(post[d]) : 1.0f));
  row[d] = up(rounded);
  sum_squares += row[d] * row[d];
  sum[base + d] = rounded;
}
if (NEXT) {
  const float next_inverse = rsqrtf(block_sum(sum_squares) / WIDTH + eps[0]);
  for (int d = threadIdx.x; d < WIDTH; d += blockDim.x) {
    normed[base + d] = static_cast<T>(row[d] * next_inverse * up(pre[d]));
  }
}
