// 1 / (1 + exp(-x)). Below -80 the result is negligible in f32, and exp stays finite. NaN is preserved; it is
// detected in the bits, since fast math may ignore it.
inline float sigmoid(float x) {
    const bool is_number = (as_type<uint>(x) & 0x7fffffffu) <= 0x7f800000u;
    return is_number ? 1.0f / (1.0f + exp(-max(x, -80.0f))) : as_type<float>(0x7fc00000u);
}
