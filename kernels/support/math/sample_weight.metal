// Flushes subnormal numbers to 0, so that devices with and without subnormals agree.
inline float normal(float number) {
    const bool is_normal = (as_type<uint>(number) & 0x7f800000u) != 0u;
    return is_normal ? number : 0.0f;
}

// Upper half of a product.
inline uint high_half(uint a, uint b) {
    return uint((ulong(a) * ulong(b)) >> 32u);
}

// Sampling weight of a token: 2^31 · 2^(-scale · (top - logit)) as an integer. All steps round identically on
// all devices, and match `draw.rs` of the runtime. NaN has weight 0.
inline uint weight_of(float logit, float top, float scale) {
    const bool is_number = (as_type<uint>(logit) & 0x7fffffffu) <= 0x7f800000u;
    // The difference of two infinities is undefined.
    const bool is_top = normal(logit) == normal(top);
    const float powers = normal(normal(top) - normal(logit)) * scale;
    const bool is_near = is_number && powers < 32.0f;
    const uint steps = is_near ? uint(powers * 67108864.0f) : 0u;

    // A polynomial of the exponent's fraction, and a rounding shift.
    const uint fraction = steps << 6u;
    uint sum = 639488u - high_half(48550u, fraction);
    sum = 5712048u - high_half(sum, fraction);
    sum = 41304489u - high_half(sum, fraction);
    sum = 238387495u - high_half(sum, fraction);
    sum = 1031764939u - high_half(sum, fraction);
    sum = 2977044471u - high_half(sum, fraction);
    const uint whole = steps >> 26u;
    const uint weight = 0x80000000u - (high_half(sum, fraction) >> 1u);
    const bool weighs = is_near || is_top;
    return weighs ? (weight + ((1u << whole) >> 1u)) >> whole : 0u;
}
