// sum = x + SCALE · y, SCALE 1 or ½ (or x alone without ADD) and its layer norm, through SiLU if asked. One block per row.
__shared__ float row[WIDTH];
const size_t base = static_cast<size_t>(blockIdx.x) * WIDTH;
float partial = 0.0f;
for (int d = threadIdx.x; d < WIDTH; d += blockDim.x) {
  const T rounded = ADD ? static_cast<T>(up(x[base + d]) + (HALF ? 0.5f : 1.0f) * up(y[base + d])) : x[base + d];
  row[d] = up(rounded);
  partial += row[d];
  if (ADD) {
    sum[base + d] = rounded;
  }
}
const float mean = block_sum(partial) / WIDTH;
partial = 0.0f;
for (int d = threadIdx.x; d < WIDTH; d += blockDim.x) {
  partial += (row[d] - mean) * (row[d] - mean);
}
const float inverse = rsqrtf(block_sum(partial) / WIDTH + eps[0]);
for (int d = threadIdx.x; d < WIDTH; d += blockDim.x) {
  const float value = (row[d] - mean) * inverse * up(weight[d]) + up(bias[d]);
  normed[base + d] = static_cast<T>(SILU ? value / (1.0f + expf(-value)) : value);
}
