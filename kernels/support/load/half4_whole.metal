// Loads four halves of a row whose width is a multiple of a whole load, from `channel` on.
inline half4 half4_whole(device const half* row, uint channel) {
    return *(device const half4*)(row + channel);
}
