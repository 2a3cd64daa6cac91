{# Sort keys of this lane's experts. `own_logits` are the row's logits. #}
{% if ranked and scores == "softmax" %}
    // Scores from logits.
    float largest = own_logits[0];
    for (uint expert = lane; expert < {{ candidates }}u; expert += 32u) {
        largest = max(largest, own_logits[expert]);
    }
    largest = simd_max(largest);
    float total = 0.0f;
    for (uint expert = lane; expert < {{ candidates }}u; expert += 32u) {
        total += exp(own_logits[expert] - largest);
    }
    total = simd_sum(total);

{% endif %}
    // Order-preserving keys of the experts' {{ "rankings" if ranked else "logits" }}: a lane has every 32nd
    // expert.
    uint keys[{{ per_lane }}];
    #pragma unroll
    for (uint i = 0u; i < {{ per_lane }}u; i++) {
{% if candidates % 32 %}
        const uint place = min(lane + 32u * i, {{ candidates - 1 }}u);
{% else %}
        const uint place = lane + 32u * i;
{% endif %}
        const float logit = own_logits[place];
        const uint key = rank_key({{ rank }}{{ " + correction[place]" if correction else "" }});
{% if guarded %}
        keys[i] = lane + 32u * i < {{ candidates }}u ? key : 0u;
{% else %}
        keys[i] = key;
{% endif %}
    }
