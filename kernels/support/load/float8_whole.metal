// Loads eight floats of a row whose width is a multiple of a whole load, from `channel` on.
inline void float8_whole(device const float* row, uint channel, thread float4* to) {
    to[0] = *(device const float4*)(row + channel);
    to[1] = *(device const float4*)(row + channel + 4u);
}
