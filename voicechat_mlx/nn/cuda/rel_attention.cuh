// Relative-position attention of one new frame over its window: score_j = ((q + u) · k_j + (q + w) · p_j) / √D.
// The window is LEFT earlier frames, of which at most the newest `seen` are real, and the new one, which also moves into the
// returned windows. A block takes a head, or several in turn; what is older than the new frame is on its way before the blocks meet.
template <typename P, typename Meet, typename T, typename A>
__device__ void rel_attention(
    uint4*, Meet& meet, const T* qkv, const T* key_tail, const T* value_tail, const A* positions, const A* u, const A* w,
    const int* seen, T* out, T* next_keys, T* next_values) {
  constexpr int D = P::D, LEFT = P::LEFT, WIDTH = P::WIDTH, HEADS = WIDTH / D, WARPS = P::THREADS / 32;
  constexpr int NUMBERS = (D + 31) / 32, MINE = (LEFT + WARPS) / WARPS;  // of a lane, in a row; rows of a warp
  __shared__ float maxima[WARPS], totals[WARPS], means[WARPS][D];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  T keys[MINE][NUMBERS], values[MINE][NUMBERS];
  A places[MINE][NUMBERS], bias_u[NUMBERS], bias_w[NUMBERS];
  auto load = [&](int head) {
#pragma unroll
    for (int i = 0; i < NUMBERS; i++) {
      const int d = min(lane + 32 * i, D - 1);
      bias_u[i] = u[head * D + d];
      bias_w[i] = w[head * D + d];
#pragma unroll
      for (int m = 0; m < MINE; m++) {
        const int j = warp + m * WARPS;
        const size_t place = static_cast<size_t>(min(j, LEFT - 1)) * WIDTH + head * D + d;
        keys[m][i] = key_tail[place];
        values[m][i] = value_tail[place];
        places[m][i] = positions[(static_cast<size_t>(head) * (LEFT + 1) + min(j, LEFT)) * D + d];
      }
    }
  };
  meet.arrive();
  int real = 0;
  if (blockIdx.x < HEADS) {
    load(blockIdx.x);
    real = seen[0];
  }
  meet.wait();
  for (int head = blockIdx.x; head < HEADS; head += gridDim.x) {
    if (head != blockIdx.x) {
      __syncthreads();
      load(head);
    }
    float content[NUMBERS], place[NUMBERS], mean[NUMBERS] = {}, maximum = -ENDLESS, total = 0.0f;
#pragma unroll
    for (int i = 0; i < NUMBERS; i++) {
      const int d = lane + 32 * i, at = head * D + min(d, D - 1);
      const float query = up(fresh(qkv + at));
      content[i] = d < D ? query + up(bias_u[i]) : 0.0f;
      place[i] = d < D ? query + up(bias_w[i]) : 0.0f;
    }
#pragma unroll
    for (int m = 0; m < MINE; m++) {
      const int j = warp + m * WARPS;
      if (j > LEFT) {
        continue;
      }
#pragma unroll
      for (int i = 0; i < NUMBERS; i++) {
        const int d = lane + 32 * i;
        if (d < D) {
          if (j == LEFT) {
            keys[m][i] = fresh(qkv + WIDTH + head * D + d);
            values[m][i] = fresh(qkv + 2 * WIDTH + head * D + d);
          }
          if (j > 0) {
            const size_t moved = static_cast<size_t>(j - 1) * WIDTH + head * D + d;
            next_keys[moved] = keys[m][i];
            next_values[moved] = values[m][i];
          }
        }
      }
      if (j < LEFT - real) {
        continue;
      }
      float score = 0.0f;
#pragma unroll
      for (int i = 0; i < NUMBERS; i++) {
        score += content[i] * up(keys[m][i]) + place[i] * up(places[m][i]);
      }
      score = warp_sum(score) * rsqrtf(static_cast<float>(D));
      const float higher = fmaxf(maximum, score);
      const float fade = expf(maximum - higher), weight = expf(score - higher);
      total = total * fade + weight;
#pragma unroll
      for (int i = 0; i < NUMBERS; i++) {
        mean[i] = mean[i] * fade + weight * up(values[m][i]);
      }
      maximum = higher;
    }
    join_means<WARPS, D>(maxima, totals, means, maximum, total, mean, out + head * D);
  }
}
