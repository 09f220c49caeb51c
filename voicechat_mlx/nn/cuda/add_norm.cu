// norm(x + norm(y) · post) · pre. One block per row.
__shared__ float row[WIDTH];
const size_t base = static_cast<size_t>(blockIdx.x) * WIDTH;
float squares = 0.0f;
for (int d = threadIdx.x; d < WIDTH; d += blockDim.x) {
  squares += up(y[base + d]) * up(y[base + d]);
}
const float inverse = rsqrtf(block_sum(squares) / WIDTH + __int_as_float(EPS));
squares = 0.0f;
for (int d = threadIdx.x; d < WIDTH; d += blockDim.x) {
  row[d] = up(static_cast<T>(up(x[base + d]) + up(y[base + d]) * inverse * up(post[d])));
  squares += row[d] * row[d];
}
const float next_inverse = rsqrtf(block_sum(squares) / WIDTH + __int_as_float(EPS));
for (int d = threadIdx.x; d < WIDTH; d += blockDim.x) {
  normed[base + d] = static_cast<T>(row[d] * next_inverse * up(pre[d]));
}
