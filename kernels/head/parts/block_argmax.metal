{# Key of a row's largest logit, `highest`, and the lowest id with it, in all threads. #}
    // Best logit of each thread. Its ids ascend, so the first of equal logits has the lowest id.
    uint best = 0u;
    uint best_id = 0xffffffffu;
    for (uint id = thread_id; id < {{ vocabulary }}u; id += {{ threads }}u) {
        const uint key = ordered(source[id]);
        if (key > best) {
            best = key;
            best_id = id;
        }
    }

    // Best over lanes, then over simdgroups.
    uint highest = simd_max(best);
    uint lowest_id = simd_min(best == highest ? best_id : 0xffffffffu);
    if (lane == 0u) {
        best_keys[simdgroup_id] = highest;
        best_ids[simdgroup_id] = lowest_id;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
{% if simdgroups < 32 %}
    // Lanes past the last simdgroup repeat the first ones.
    const uint shared_key = best_keys[lane % {{ simdgroups }}u];
    const uint shared_id = best_ids[lane % {{ simdgroups }}u];
{% else %}
    const uint shared_key = best_keys[lane];
    const uint shared_id = best_ids[lane];
{% endif %}
    highest = simd_max(shared_key);
    lowest_id = simd_min(shared_key == highest ? shared_id : 0xffffffffu);
