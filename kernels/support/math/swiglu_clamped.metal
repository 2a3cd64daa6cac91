// Clamped SwiGLU: a / (1 + exp(-sharpness * a)) * (b + 1), where a is the gate clamped from above by the
// limit, and b is up clamped to the limit on both sides. Below -80 exp stays finite. NaN is preserved; it is
// detected in the bits, since fast math may ignore it.
inline float gate_clamped(float gate, float up, float limit, float sharpness) {
    const float a = min(gate, limit);
    const float b = clamp(up, -limit, limit);
    const uint bits = max(as_type<uint>(gate) & 0x7fffffffu, as_type<uint>(up) & 0x7fffffffu);
    const float open = a / (1.0f + exp(-max(sharpness * a, -80.0f)));
    return bits <= 0x7f800000u ? open * (b + 1.0f) : as_type<float>(0x7fc00000u);
}
