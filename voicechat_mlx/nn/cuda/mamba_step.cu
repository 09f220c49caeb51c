// One step of the Mamba-2 recurrence, gated: S = exp(Δ A) S + Δ x ⊗ B, y = (S C + D x) · silu(z). One block per head.
constexpr int WARPS = 8;
const int WIDTH = H * HEAD_DIM;
const int head = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
const float raw = up(dt[head]) + dt_bias[head];
const float delta = raw > 20.0f ? raw : log1pf(expf(raw));
const float fade = expf(delta * decay[head]);
const T* b = xbc + WIDTH + (head / (H / GROUPS)) * STATE;
const T* c = b + GROUPS * STATE;
for (int p = warp; p < HEAD_DIM; p += WARPS) {
  const int channel = head * HEAD_DIM + p;
  const size_t row = static_cast<size_t>(channel) * STATE;
  const float x = up(xbc[channel]);
  float sum = 0.0f;
  for (int n = lane; n < STATE; n += 32) {
    const float moved = fade * state[row + n] + delta * x * up(b[n]);
    next_state[row + n] = moved;
    sum += moved * up(c[n]);
  }
  sum = warp_sum(sum);
  if (lane == 0) {
    const float gate = up(z[channel]);
    const T inner = static_cast<T>(sum + skip[head] * x);
    y[channel] = static_cast<T>(up(inner) * gate / (1.0f + expf(-gate)));
  }
}
