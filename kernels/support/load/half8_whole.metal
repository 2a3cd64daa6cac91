// Loads eight halves of a row whose width is a multiple of a whole load, from `channel` on.
inline void half8_whole(device const half* row, uint channel, thread half4* to) {
    const uint4 packet = *(device const uint4*)(row + channel);
    to[0] = as_type<half4>(packet.xy);
    to[1] = as_type<half4>(packet.zw);
}
