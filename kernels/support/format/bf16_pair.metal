// Converts a scale and an offset in bf16, stored side by side. A bf16 is the upper half of an f32.
inline float2 bf16_pair(uint pair) {
    return float2(as_type<float>(pair << 16u), as_type<float>(pair & 0xffff0000u));
}
