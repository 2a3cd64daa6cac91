// Loads eight halves of a row whose width is a multiple of 8, from `channel` on; zeros past the width.
inline void half8_guarded(device const half* row, uint channel, uint width, thread half4* to) {
    const uint4 packet = channel < width ? *(device const uint4*)(row + channel) : uint4(0u);
    to[0] = as_type<half4>(packet.xy);
    to[1] = as_type<half4>(packet.zw);
}
