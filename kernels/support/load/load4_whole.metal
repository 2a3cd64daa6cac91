// Four columns of a row whose width is a multiple of what is loaded at once.
inline float4 load4_whole(device const float* row, uint column) {
    return *(device const float4*)(row + column);
}
