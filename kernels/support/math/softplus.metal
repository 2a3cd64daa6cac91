// ln(1 + exp(x)), also where exp(x) is more than a float holds.
inline float softplus(float x) {
    return max(x, 0.0f) + log(1.0f + exp(-fabs(x)));
}
