// One stage of the subsampling: a 3 × 3 convolution with stride 2 over rows (earlier ones, then x) and bins, of one channel
// (SHARED) or of each channel alone. Output (o, f) reads rows 2o … 2o + 2 and bins 2f - 2 … 2f; zero outside.
const int rows = earlier + arriving, outputs = (rows - 3) / 2 + 1;
constexpr int bins = BINS, bins_out = bins / 2 + 1, width = SHARED ? 1 : C;
const int all = outputs * bins_out * C, step = gridDim.x * blockDim.x;
auto joined = [&](int row, int i) {
  return row < earlier ? before[row * bins * width + i] : x[(row - earlier) * bins * width + i];
};
for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < all; i += step) {
  const int c = i % C, f = i / C % bins_out, o = i / C / bins_out;
  float sum = up(bias[c]);
  for (int r = 0; r < 3; r++) {
    for (int b = 0; b < 3; b++) {
      const int bin = 2 * f - 2 + b;
      if (bin >= 0 && bin < bins) {
        sum += up(taps[(3 * r + b) * C + c]) * joined(2 * o + r, bin * width + (SHARED ? 0 : c));
      }
    }
  }
  y[i] = sum;
}
for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < (rows - 2 * outputs) * bins * width; i += step) {
  after[i] = joined(2 * outputs + i / (bins * width), i % (bins * width));
}
