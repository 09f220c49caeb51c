// One frame of a Mamba-2 mixer between its projections: the causal convolution of x, B and C with SiLU, then
// S = exp(Δ A) S + Δ x ⊗ B and y = (S C + D x) · silu(z). One block per head; `projected` holds z, x, B, C and Δ.
constexpr int WARPS = 8, WIDTH = H * HEAD_DIM, CHANNELS = WIDTH + 2 * GROUPS * STATE, PER_GROUP = H / GROUPS;
__shared__ float inputs[HEAD_DIM], b[STATE], c[STATE];
const int head = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
constexpr int MINE = (HEAD_DIM + WARPS - 1) / WARPS, PER = (STATE + 31) / 32;
float old[MINE][PER];  // on its way while the convolution runs
#pragma unroll
for (int m = 0; m < MINE; m++) {
#pragma unroll
  for (int i = 0; i < PER; i++) {
    const int p = warp + m * WARPS, n = lane + 32 * i;
    old[m][i] = p < HEAD_DIM && n < STATE ? state[static_cast<size_t>(head * HEAD_DIM + p) * STATE + n] : 0.0f;
  }
}
const T* z = projected;
const T* xbc = projected + WIDTH;
auto convolve = [&](int channel, bool moves) {
  float sum = up(bias[channel]);
  for (int k = 0; k < TAPS - 1; k++) {
    const T past = tail[k * CHANNELS + channel];
    sum += up(taps[k * CHANNELS + channel]) * up(past);
    if (moves && k > 0) {
      next_tail[(k - 1) * CHANNELS + channel] = past;
    }
  }
  sum += up(taps[(TAPS - 1) * CHANNELS + channel]) * up(xbc[channel]);
  if (moves) {
    next_tail[(TAPS - 2) * CHANNELS + channel] = xbc[channel];
  }
  return up(static_cast<T>(sum / (1.0f + expf(-sum))));
};
const bool leads = head % PER_GROUP == 0;  // one head of a group moves what all of them share
for (int i = threadIdx.x; i < HEAD_DIM; i += blockDim.x) {
  inputs[i] = convolve(head * HEAD_DIM + i, true);
}
for (int i = threadIdx.x; i < STATE; i += blockDim.x) {
  b[i] = convolve(WIDTH + head / PER_GROUP * STATE + i, leads);
  c[i] = convolve(WIDTH + (GROUPS + head / PER_GROUP) * STATE + i, leads);
}
const float raw = up(projected[WIDTH + CHANNELS + head]) + dt_bias[head];
const float delta = raw > 20.0f ? raw : log1pf(expf(raw));
const float fade = expf(delta * decay[head]);
__syncthreads();
#pragma unroll
for (int m = 0; m < MINE; m++) {
  const int p = warp + m * WARPS, channel = head * HEAD_DIM + p;
  if (p < HEAD_DIM) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < PER; i++) {
      const int n = lane + 32 * i;
      if (n < STATE) {
        const float moved = fade * old[m][i] + delta * inputs[p] * b[n];
        next_state[static_cast<size_t>(channel) * STATE + n] = moved;
        sum += moved * c[n];
      }
    }
    sum = warp_sum(sum);
    if (lane == 0) {
      const float gate = up(z[channel]);
      const T inner = static_cast<T>(sum + skip[head] * inputs[p]);
      y[channel] = static_cast<T>(up(inner) * gate / (1.0f + expf(-gate)));
    }
  }
}
