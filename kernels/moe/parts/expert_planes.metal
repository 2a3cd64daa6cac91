{# Base pointers of the matrix in a cache slot. #}
    const ulong before = ulong(cache_slot) * {{ record }}ul;
{% for plane in planes %}
    device const {{ plane.element }}* own_{{ plane.name }} = (device const {{ plane.element }}*)((device const uchar*)weight_{{ plane.name }} + before);
{% endfor %}
