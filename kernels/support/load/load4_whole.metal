// Loads four columns of a row whose width is a multiple of a whole load.
inline float4 load4_whole(device const float* row, uint column) {
    return *(device const float4*)(row + column);
}
