// T steps of a causal depthwise convolution, y[t, c] = bias[c] + Σ_k taps[k, c] · joined[t + k, c], joined = tail, then x;
// with NORM its layer norm over the channels, and through SiLU if asked. One block per step; the moved tail is block 0's.
__shared__ float row[C];
const int t = blockIdx.x, steps = gridDim.x;
auto joined = [&](int step, int c) { return step < K - 1 ? tail[step * C + c] : x[static_cast<size_t>(step - K + 1) * C + c]; };
float partial = 0.0f;
for (int c = threadIdx.x; c < C; c += blockDim.x) {
  float sum = BIAS ? up(bias[c]) : 0.0f;
  for (int k = 0; k < K; k++) {
    sum += up(taps[k * C + c]) * up(joined(t + k, c));
  }
  row[c] = sum;
  partial += sum;
}
if (t == 0) {
  for (int i = threadIdx.x; i < (K - 1) * C; i += blockDim.x) {
    next_tail[i] = joined(steps + i / C, i % C);
  }
}
float mean = 0.0f, inverse = 1.0f;
if (NORM) {
  mean = block_sum(partial) / C;
  partial = 0.0f;
  for (int c = threadIdx.x; c < C; c += blockDim.x) {
    partial += (row[c] - mean) * (row[c] - mean);
  }
  inverse = rsqrtf(block_sum(partial) / C + __int_as_float(EPS));
}
for (int c = threadIdx.x; c < C; c += blockDim.x) {
  const float value = NORM ? (row[c] - mean) * inverse * up(norm_weight[c]) + up(norm_bias[c]) : row[c];
  y[static_cast<size_t>(t) * C + c] = static_cast<T>(SILU ? value / (1.0f + expf(-value)) : value);
}
