// softmax(q kᵀ) v for one new frame, over the frames in a key/value buffer and the new one itself, which is put into the
// buffer IN PLACE, at position modulo capacity (with KEEPS, what follows the first `count[1]` moves round). With ROTATE, q and k are first normed and rotated by halves: `rates`
// holds D / 2 rotation rates. One block per row and head; warps take AT_ONCE slots in turn and join their means.
constexpr int WARPS = 32, P = (D + 31) / 32, HALF = D / 2, AT_ONCE = 4;
__shared__ float maxima[WARPS], totals[WARPS], means[WARPS][D], asked[D], offered[D];
const int row = blockIdx.x / H, head = blockIdx.x % H, shared = head / (H / HK);
const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, position = count[0];
const T* source = qkv + static_cast<size_t>(row) * (H + 2 * HK) * D;
const T* newest = source + (H + HK + shared) * D;
const size_t base = static_cast<size_t>(row * HK + shared) * C * D;
if (warp < 2) {
  const T* raw = source + (warp == 0 ? head : H + shared) * D;
  float* target = warp == 0 ? asked : offered;
  for (int d = lane; d < D; d += 32) {
    target[d] = up(raw[d]);
  }
  __syncwarp();
  if (ROTATE) {
    float squares = 0.0f;
    for (int d = lane; d < D; d += 32) {
      squares += target[d] * target[d];
    }
    const float inverse = rsqrtf(warp_sum(squares) / D + __int_as_float(EPS));
    const T* scale = warp == 0 ? q_scale : k_scale;
    for (int d = lane; d < HALF; d += 32) {
      float sine, cosine;
      sincosf(position * up(rates[d]), &sine, &cosine);
      const float low = target[d] * inverse * up(scale[d]), high = target[d + HALF] * inverse * up(scale[d + HALF]);
      target[d] = up(static_cast<T>(low * cosine - high * sine));
      target[d + HALF] = up(static_cast<T>(high * cosine + low * sine));
    }
  }
}
__syncthreads();
const int kept = KEEPS ? count[1] : 0, filled = min(position, C);
const int slot = position < kept ? position : kept + (position - kept) % (C - kept);
if (warp == 0 && head % (H / HK) == 0) {  // one of the heads that share these keys
  for (int d = lane; d < D; d += 32) {
    const_cast<T*>(keys)[base + static_cast<size_t>(slot) * D + d] = static_cast<T>(offered[d]);
    const_cast<T*>(values)[base + static_cast<size_t>(slot) * D + d] = newest[d];
  }
}
float query[P], mean[P] = {}, maximum = -ENDLESS, total = 0.0f;
for (int i = 0; i < P; i++) {
  const int d = lane + 32 * i;
  query[i] = d < D ? asked[d] * __int_as_float(SCALE) : 0.0f;
}
auto take = [&](float score, const float* value) {
  const float higher = fmaxf(maximum, score);
  const float fade = expf(maximum - higher), weight = expf(score - higher);
  total = total * fade + weight;
#pragma unroll
  for (int i = 0; i < P; i++) {
    mean[i] = mean[i] * fade + weight * value[i];
  }
  maximum = higher;
};
for (int begin = warp; begin < filled; begin += WARPS * AT_ONCE) {
  float key[AT_ONCE][P], value[AT_ONCE][P];
#pragma unroll
  for (int j = 0; j < AT_ONCE; j++) {
    const int place = begin + j * WARPS;
#pragma unroll
    for (int i = 0; i < P; i++) {
      const int d = lane + 32 * i;
      const bool there = place < filled && d < D;
      key[j][i] = there ? up(keys[base + static_cast<size_t>(place) * D + d]) : 0.0f;
      value[j][i] = there ? up(values[base + static_cast<size_t>(place) * D + d]) : 0.0f;
    }
  }
#pragma unroll
  for (int j = 0; j < AT_ONCE; j++) {
    const int place = begin + j * WARPS;
    float score = 0.0f;
#pragma unroll
    for (int i = 0; i < P; i++) {
      score += query[i] * key[j][i];
    }
    score = warp_sum(score);
    if (place < filled && place != slot) {  // the slot's old frame leaves the window
      take(score, value[j]);
    }
  }
}
if (warp == 0) {
  float score = 0.0f, value[P];
  for (int i = 0; i < P; i++) {
    const int d = lane + 32 * i;
    score += d < D ? query[i] * offered[d] : 0.0f;
    value[i] = d < D ? up(newest[d]) : 0.0f;
  }
  take(warp_sum(score), value);
}
join_means<WARPS, D>(maxima, totals, means, maximum, total, mean, out + blockIdx.x * D);
