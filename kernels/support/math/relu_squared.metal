// max(x, 0)²
inline float relu_squared(float x) {
    const float positive = max(x, 0.0f);
    return positive * positive;
}
