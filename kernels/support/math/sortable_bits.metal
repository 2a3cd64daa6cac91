// Converts a float to bits with the same order, in integer arithmetic, since fast math may ignore NaN. The
// two zeros are equal; NaN is 0, below every number.
inline uint ordered(float number) {
    uint bits = as_type<uint>(number);
    bits = bits == 0x80000000u ? 0u : bits;
    const bool is_number = (bits & 0x7fffffffu) <= 0x7f800000u;
    const uint key = (bits & 0x80000000u) != 0u ? ~bits : bits | 0x80000000u;
    return is_number ? key : 0u;
}
