// Two signed bytes of a word in f16: bytes 0 and 2, or with `odd` 1 and 3. Without its sign, a byte with 128
// added is the last bits of 1024 to 1279, which has no fraction.
inline half2 codes_to_f16(uint word, uint odd) {
    const uint bits = ((word >> 8u * odd) & 0x00ff00ffu) ^ 0x00800080u;
    return as_type<half2>(bits | 0x64006400u) - half2(1152.0h);
}
