// The next hops of a stream from T frames of BINS magnitude logits and BINS phases, and the frames that still overlap
// what comes next. Hop j is Σ_i quarter i of frame j - i, over the window energy of the frames that are real.
constexpr int PER_FRAME = N / HOP, OVERLAP = PER_FRAME - 1;
const int step = gridDim.x * blockDim.x;
auto number = [&](int frame, int n) {  // windowed; a frame below zero is held back from before
  if (frame < 0) {
    return held[(OVERLAP + frame) * N + n];
  }
  const float* row = features + static_cast<size_t>(frame) * 2 * BINS;
  float sum = 0.0f;
  for (int k = 0; k < BINS; k++) {
    float sine, cosine;
    sincosf(row[BINS + k], &sine, &cosine);
    const float magnitude = __int_as_float(MOST) / (1.0f + expf(__int_as_float(LOG_MOST) - row[k]));
    sum += magnitude * cosine * matrix[k * N + n];
    sum += k == 0 || k == BINS - 1 ? 0.0f : magnitude * sine * matrix[(BINS + k) * N + n];
  }
  return fminf(fmaxf(sum, -window[n]), window[n]) * window[n];
};
auto is_real = [&](int frame) { return frame < 0 ? real[OVERLAP + frame] : 1.0f; };
for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < frames * HOP; i += step) {
  float sum = 0.0f, energy = 0.0f;
  for (int quarter = 0; quarter < PER_FRAME; quarter++) {
    const int frame = i / HOP - quarter, n = quarter * HOP + i % HOP;
    sum += number(frame, n);
    energy += is_real(frame) * window[n] * window[n];
  }
  samples[i] = sum / fmaxf(energy, 1e-11f);
}
for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < OVERLAP * N; i += step) {
  next_held[i] = number(frames - OVERLAP + i / N, i % N);
  if (i < OVERLAP) {
    next_real[i] = is_real(frames - OVERLAP + i);
  }
}
