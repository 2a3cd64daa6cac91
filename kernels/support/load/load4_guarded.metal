// Loads four columns of a row whose width is a multiple of 4; zeros past the width.
inline float4 load4_guarded(device const float* row, uint column, uint width) {
    return column < width ? *(device const float4*)(row + column) : float4(0.0f);
}
