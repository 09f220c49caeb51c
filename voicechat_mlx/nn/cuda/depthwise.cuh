// Steps of a causal depthwise convolution, y[t, c] = bias[c] + Σ_k taps[k, c] · joined[t + k, c], joined = tail, then x;
// with NORM its layer norm over the channels, and through SiLU if asked. A block takes a step, or, without NORM, a part of
// its channels. Several steps are a launch of their own, which has as many blocks as there is work.
template <typename P, typename Meet, typename T, typename A, typename B, typename NW, typename NB>
__device__ void depthwise(
    uint4*, Meet& meet, const T* x, const T* tail, const A* taps, const B* bias, const NW* norm_weight, const NB* norm_bias,
    T* y, T* next_tail) {
  constexpr int K = P::K, C = P::C, THREADS = P::THREADS, SHARE = P::NORM ? C : THREADS;
  constexpr int SHARES = (C + SHARE - 1) / SHARE, MINE = (SHARE + THREADS - 1) / THREADS;  // of a step; channels of a thread
  const int steps = P::ALONE ? gridDim.x / SHARES : 1;
  float sums[MINE];
  auto channel = [&](int task, int m) { return task % SHARES * SHARE + static_cast<int>(threadIdx.x) + m * THREADS; };
  auto add_past = [&](int task) {
    const int t = P::ALONE ? task / SHARES : 0;
#pragma unroll
    for (int m = 0; m < MINE; m++) {
      const int c = min(channel(task, m), C - 1);
      sums[m] = P::BIAS ? up(bias[c]) : 0.0f;
      for (int k = 0; k < K - 1 - t; k++) {
        sums[m] += up(taps[k * C + c]) * up(tail[(t + k) * C + c]);
      }
    }
  };
  meet.arrive();
  add_past(blockIdx.x);
  meet.wait();
  for (int task = blockIdx.x; task < steps * SHARES; task += gridDim.x) {
    const int t = P::ALONE ? task / SHARES : 0;
    if (task != blockIdx.x) {
      add_past(task);
    }
    float mean = 0.0f, inverse = 1.0f;
#pragma unroll
    for (int m = 0; m < MINE; m++) {
      const int c = channel(task, m);
      if (c >= C) {
        sums[m] = 0.0f;
        continue;
      }
      for (int k = max(K - 1 - t, 0); k < K; k++) {
        sums[m] += up(taps[k * C + c]) * up(fresh(x + static_cast<size_t>(t + k - K + 1) * C + c));
      }
      mean += sums[m];
      if (t == 0) {
        for (int k = 0; k < K - 1; k++) {
          const int from = steps + k;
          next_tail[k * C + c] = from < K - 1 ? tail[from * C + c] : fresh(x + static_cast<size_t>(from - K + 1) * C + c);
        }
      }
    }
    if (P::NORM) {
      mean = block_sum(mean) / C;
      float squares = 0.0f;
#pragma unroll
      for (int m = 0; m < MINE; m++) {
        squares += channel(task, m) < C ? (sums[m] - mean) * (sums[m] - mean) : 0.0f;
      }
      inverse = rsqrtf(block_sum(squares) / C + __int_as_float(P::EPS));
    }
#pragma unroll
    for (int m = 0; m < MINE; m++) {
      const int c = channel(task, m);
      if (c < C) {
        const float value = P::NORM ? (sums[m] - mean) * inverse * up(norm_weight[c]) + up(norm_bias[c]) : sums[m];
        y[static_cast<size_t>(t) * C + c] = static_cast<T>(P::SILU ? value / (1.0f + expf(-value)) : value);
      }
    }
  }
}
