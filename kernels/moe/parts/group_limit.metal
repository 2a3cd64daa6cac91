{# Group-limited routing: experts of groups that are not kept get keys below all others. #}
{% set grouped_lanes = expert_groups * group_lanes %}
{% set of_group = " / " ~ group_lanes ~ "u" if group_lanes > 1 else "" %}
{% set in_group = "lane % " ~ group_lanes ~ "u" if group_lanes > 1 else "0u" %}
{% set taken_group = "take_best(of_groups, 1u, lane)" ~ of_group %}
{% set worth = "rank_key(rank_of(best) + rank_of(second))" if best == 2 else "best" %}
    // {{ group_lanes }} lane{{ "s process" if group_lanes > 1 else " processes" }} a group, whose score is
    // the
    // {{ "sum of its two best rankings" if best == 2 else "best of its rankings" }}{{ ". Other lanes are idle" if grouped_lanes < 32 else "" }}.
{% if grouped_lanes < 32 %}
    const uint first_expert = lane < {{ grouped_lanes }}u ? {{ in_group }} : {{ group_size }}u;
{% else %}
    const uint first_expert = {{ in_group }};
{% endif %}
    uint best = 0u;
{% if best == 2 %}
    uint second = 0u;
{% endif %}
    for (uint i = first_expert; i < {{ group_size }}u; i += {{ group_lanes }}u) {
        const uint place = lane{{ of_group }} * {{ group_size }}u + i;
        const float logit = own_logits[place];
        const uint key = rank_key({{ rank }}{{ " + correction[place]" if correction else "" }});
{% if best == 2 %}
        second = clamp(key, second, best);
{% endif %}
        best = max(best, key);
    }
{% if group_lanes > 1 %}
    for (uint mask = 1u; mask < {{ group_lanes }}u; mask *= 2u) {
        const uint other = simd_shuffle_xor(best, ushort(mask));
{% if best == 2 %}
        const uint other_second = simd_shuffle_xor(second, ushort(mask));
        second = max(clamp(other, second, best), other_second);
{% endif %}
        best = max(best, other);
    }
{% endif %}

    // Experts of groups that are not kept rank below all others.
    uint of_groups[1] = {first_expert == 0u ? {{ worth }} : 0u};
    uint kept = 0u;
    for (uint s = 0u; s < {{ kept }}u; s++) {
        kept |= 1u << ({{ taken_group }});
    }
    #pragma unroll
    for (uint i = 0u; i < {{ per_lane }}u; i++) {
        keys[i] = (kept >> ((lane + 32u * i) / {{ group_size }}u) & 1u) != 0u ? keys[i] : 0u;
    }
