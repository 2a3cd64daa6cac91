// Four halves of a row whose width is a multiple of what is loaded at once, from `channel`.
inline half4 half4_whole(device const half* row, uint channel) {
    return *(device const half4*)(row + channel);
}
