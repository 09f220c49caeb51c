// One frame of a Mamba-2 mixer between its projections: the causal convolution of x, B and C with SiLU, then
// S = exp(Δ A) S + Δ x ⊗ B and y = (S C + D x) · silu(z). A block takes a head, or several in turn; `projected` holds z, x, B,
// C and Δ. The state is on its way before the blocks meet, and the convolution has added up what is older than the frame.
template <typename P, typename Meet, typename T, typename A, typename B, typename S>
__device__ void mamba_frame(
    uint4*, Meet& meet, const T* projected, const T* tail, const A* taps, const B* bias, const float* decay, const S* skip,
    const S* dt_bias, const float* state, T* y, T* next_tail, float* next_state) {
  constexpr int H = P::H, HEAD_DIM = P::HEAD_DIM, STATE = P::STATE, GROUPS = P::GROUPS, TAPS = P::TAPS, THREADS = P::THREADS;
  constexpr int WARPS = THREADS / 32, WIDTH = H * HEAD_DIM, CHANNELS = WIDTH + 2 * GROUPS * STATE, PER_GROUP = H / GROUPS;
  constexpr int ROWS = (HEAD_DIM + WARPS - 1) / WARPS, PER = (STATE + 31) / 32;  // of a warp; numbers of a lane, in a row
  constexpr int INPUTS = HEAD_DIM + 2 * STATE, MINE = (INPUTS + THREADS - 1) / THREADS;  // channels of a head; of a thread
  __shared__ float inputs[INPUTS];
  const float *const b = inputs + HEAD_DIM, *const c = b + STATE;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  float old[ROWS][PER], sums[MINE];
  // Where the i-th of a head's inputs lies: its x, then its group's B and C.
  auto channel = [&](int head, int i) {
    const int group = head / PER_GROUP, n = i - HEAD_DIM;
    return n < 0 ? head * HEAD_DIM + i : WIDTH + (n < STATE ? group * STATE + n : (GROUPS + group) * STATE + n - STATE);
  };
  // One head of a group moves what all of them share.
  auto moves = [&](int head, int i) { return i < HEAD_DIM || head % PER_GROUP == 0; };
  auto load = [&](int head) {
#pragma unroll
    for (int m = 0; m < ROWS; m++) {
#pragma unroll
      for (int i = 0; i < PER; i++) {
        const int p = warp + m * WARPS, n = lane + 32 * i;
        old[m][i] = p < HEAD_DIM && n < STATE ? state[static_cast<size_t>(head * HEAD_DIM + p) * STATE + n] : 0.0f;
      }
    }
#pragma unroll
    for (int m = 0; m < MINE; m++) {
      const int i = threadIdx.x + m * THREADS;
      if (i < INPUTS) {
        const int at = channel(head, i);
        sums[m] = up(bias[at]);
        for (int k = 0; k < TAPS - 1; k++) {
          const T past = tail[k * CHANNELS + at];
          sums[m] += up(taps[k * CHANNELS + at]) * up(past);
          if (moves(head, i) && k > 0) {
            next_tail[(k - 1) * CHANNELS + at] = past;
          }
        }
      }
    }
  };
  meet.arrive();
  if (blockIdx.x < H) {
    load(blockIdx.x);
  }
  meet.wait();
  for (int head = blockIdx.x; head < H; head += gridDim.x) {
    if (head != blockIdx.x) {
      __syncthreads();
      load(head);
    }
#pragma unroll
    for (int m = 0; m < MINE; m++) {
      const int i = threadIdx.x + m * THREADS;
      if (i < INPUTS) {
        const int at = channel(head, i);
        const T now = fresh(projected + WIDTH + at);
        const float sum = sums[m] + up(taps[(TAPS - 1) * CHANNELS + at]) * up(now);
        if (moves(head, i)) {
          next_tail[(TAPS - 2) * CHANNELS + at] = now;
        }
        inputs[i] = up(static_cast<T>(sum / (1.0f + expf(-sum))));
      }
    }
    const float raw = up(fresh(projected + WIDTH + CHANNELS + head)) + up(dt_bias[head]);
    const float delta = raw > 20.0f ? raw : log1pf(expf(raw));
    const float fade = expf(delta * decay[head]);
    __syncthreads();
#pragma unroll
    for (int m = 0; m < ROWS; m++) {
      const int p = warp + m * WARPS, row = head * HEAD_DIM + p;
      if (p < HEAD_DIM) {
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < PER; i++) {
          const int n = lane + 32 * i;
          if (n < STATE) {
            const float moved = fade * old[m][i] + delta * inputs[p] * b[n];
            next_state[static_cast<size_t>(row) * STATE + n] = moved;
            sum += moved * c[n];
          }
        }
        sum = warp_sum(sum);
        if (lane == 0) {
          const float gate = up(fresh(projected + row));
          const T inner = static_cast<T>(sum + up(skip[head]) * inputs[p]);
          y[row] = static_cast<T>(up(inner) * gate / (1.0f + expf(-gate)));
        }
      }
    }
  }
}
