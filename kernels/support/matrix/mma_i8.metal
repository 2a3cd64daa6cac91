// Fragments of integer matrix products. A lane has `own_row` 0 to 7 and `quarter` 0 to 3 (see `gemv_batch`).

// Transposes the packets of the four lanes of a row: word b of the result is word `quarter` of lane b's packet.
inline uint4 transposed_words(uint4 packet, uint quarter) {
    const bool odd = (quarter & 1u) != 0u;
    const uint a = simd_shuffle_xor(odd ? packet.x : packet.y, ushort(1));
    const uint b = simd_shuffle_xor(odd ? packet.z : packet.w, ushort(1));
    const uint4 pairs = odd ? uint4(a, packet.y, b, packet.w) : uint4(packet.x, a, packet.z, b);
    const bool high = (quarter & 2u) != 0u;
    const uint c = simd_shuffle_xor(high ? pairs.x : pairs.z, ushort(8));
    const uint d = simd_shuffle_xor(high ? pairs.y : pairs.w, ushort(8));
    return high ? uint4(c, d, pairs.z, pairs.w) : uint4(pairs.x, pairs.y, c, d);
}

// Products of a block of 32 columns: 16 rows of signed bytes times four rows of 16-bit codes. `above` and `below`
// are the lane's words of rows `own_row` and `own_row + 8`, columns 4 `quarter` and 16 more. `two` has the same
// columns of column `own_row` of the right factor: the upper and the lower bytes of each code in turn. The
// result is that of the lane's two rows, for row `quarter` of the codes. Targets with integer MMA replace this
// body.
#ifndef OWN_QUAD_PRODUCTS
inline int2 quad_products(uint2 above, uint2 below, uint2 two, uint lane) {
    const uint quarter = (lane >> 2u & 2u) | (lane & 1u);
    const ushort left = ushort(lane & ~9u);
    // Lane 0 of the column of upper bytes; that of the lower bytes follows.
    const ushort right = ushort((quarter & 2u) << 3u | (quarter & 1u) << 2u);
    int2 sums = int2(0);
    #pragma unroll
    for (uint i = 0u; i < 4u; i++) {
        const ushort step = ushort((i & 1u) | (i & 2u) << 2u);
        const ushort of_upper = ushort(right | step);
        const ushort of_lower = ushort(right | step | 2u);
        #pragma unroll
        for (uint half_of = 0u; half_of < 2u; half_of++) {
            const uint a = simd_shuffle(above[half_of], ushort(left | step));
            const uint b = simd_shuffle(below[half_of], ushort(left | step));
            const uint upper = simd_shuffle(two[half_of], of_upper);
            const uint lower = simd_shuffle(two[half_of], of_lower);
            sums.x += 256 * byte_products(a, upper) + byte_products(a, lower);
            sums.y += 256 * byte_products(b, upper) + byte_products(b, lower);
        }
    }
    return sums;
}
#endif
