// One step of a causal depthwise convolution: y[c] = act(bias[c] + Σ_k taps[k, c] · window[k, c]), and the moved window.
const int C = taps_shape[1];
const int c = blockIdx.x * blockDim.x + threadIdx.x;
if (c >= C) {
  return;
}
float sum = BIAS ? up(bias[c]) : 0.0f;
for (int k = 0; k < K - 1; k++) {
  const T value = tail[k * C + c];
  sum += up(taps[k * C + c]) * up(value);
  if (k > 0) {
    next_tail[(k - 1) * C + c] = value;
  }
}
sum += up(taps[(K - 1) * C + c]) * up(x[c]);
next_tail[(K - 2) * C + c] = x[c];
y[c] = static_cast<T>(SILU ? sum / (1.0f + expf(-sum)) : sum);
