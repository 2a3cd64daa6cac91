// Scale of an iq4_xs packet; packets are counted through superblocks of 8. A superblock has 5 16-bit words: the half
// d, and a signed byte for each packet. A weight is an entry times d times its byte.
//
// The byte is made unsigned and set as the low bits of the half 1024.0, as in q8_0. The product is exact in f32.
inline float iq4_xs_scale(device const ushort* scales, uint packet) {
    device const ushort* parts = scales + packet / 8u * 5u;
    const uint bytes = uint(parts[1u + packet % 8u / 2u]) >> (8u * (packet & 1u));
    const half count = as_type<half>(ushort(((bytes & 0xffu) ^ 0x80u) | 0x6400u)) - half(1152.0h);
    return float(as_type<half>(parts[0])) * float(count);
}
