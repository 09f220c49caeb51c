// One row of fused q, k, v heads → q and k normed and rotated by halves, v as it is. One warp per head.
// `constants` holds D / 2 rotation rates, then the norm's epsilon.
constexpr int HEADS = H + 2 * HK, HALF = D / 2;
__shared__ float normed[8][D];
const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
const int unit = blockIdx.x * 8 + warp;
if (unit >= qkv_shape[0] * HEADS) {
  return;
}
const int row = unit / HEADS, head = unit % HEADS;
const T* source = qkv + static_cast<size_t>(unit) * D;
if (head >= H + HK) {
  for (int d = lane; d < D; d += 32) {
    v[(row * HK + head - H - HK) * D + d] = source[d];
  }
  return;
}
float squares = 0.0f;
for (int d = lane; d < D; d += 32) {
  squares += up(source[d]) * up(source[d]);
}
const float inverse = rsqrtf(warp_sum(squares) / D + constants[HALF]);
const T* scale = head < H ? q_scale : k_scale;
for (int d = lane; d < D; d += 32) {
  normed[warp][d] = up(source[d]) * inverse * up(scale[d]);
}
__syncwarp();
T* target = head < H ? q + (row * H + head) * D : k + (row * HK + head - H) * D;
for (int d = lane; d < HALF; d += 32) {
  float sine, cosine;
  sincosf(offset[0] * constants[d], &sine, &cosine);
  const float low = normed[warp][d], high = normed[warp][d + HALF];
  target[d] = static_cast<T>(low * cosine - high * sine);
  target[d + HALF] = static_cast<T>(high * cosine + low * sine);
}
