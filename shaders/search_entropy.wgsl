// Adaptive temperature: the first pass finds the entropy H of each row's softmax, the second multiplies the scores by
//   beta = max(1, poly(H)) where H is above a threshold, else 1
// (Velickovic et al. 2024, arXiv 2410.01104). A flat row is sharpened, a sharp one left as it is.

// The sums l and u of a softmax, in terms of the maximum: see softmax.wgsl.
struct Search {
    maxima: array<vec4<f32>, MAXIMA>,
    sums: array<vec4<f32>, SUMS>,
    beta: vec4<f32>,
    done: vec4<bool>,
}

fn start_search(live: vec4<bool>) -> Search {
    let zero = vec4<f32>(0.0);
    return Search(array<vec4<f32>, MAXIMA>(vec4<f32>(NOTHING)), array<vec4<f32>, SUMS>(zero, zero), vec4<f32>(1.0), !live);
}

fn gather(search: Search, s: vec4<f32>, j: u32) -> Search {
    let m = max(search.maxima[0u], s);
    var next = in_terms_of(search, array<vec4<f32>, MAXIMA>(m));
    let p = weight_masked(s, m, vec4<f32>(0.0));
    next.sums[0u] += p;
    next.sums[1u] += entropy_term(s, m, p);
    return next;
}

fn in_terms_of(search: Search, maxima: array<vec4<f32>, MAXIMA>) -> Search {
    let old = State(search.maxima[0u], search.sums[0u], search.sums[1u]);
    let state = rebase(old, maxima[0u], shift(old, maxima[0u]));
    return Search(maxima, array<vec4<f32>, SUMS>(state.l, state.u), search.beta, search.done);
}

fn advance(search: Search) -> Search {
    let l = max(search.sums[0u], vec4<f32>(1.0)); // a row's largest key adds 1; 0 is a row that sees none
    let entropy = (l * (log2(l) * LOG2_UNIT) - search.sums[1u]) / l * (LN_2 / LOG2_UNIT);
    var poly = vec4<f32>(params.adapt_4);
    poly = poly * entropy + params.adapt_3;
    poly = poly * entropy + params.adapt_2;
    poly = poly * entropy + params.adapt_1;
    poly = poly * entropy + params.adapt_0;
    var next = search;
    next.beta = select(vec4<f32>(1.0), max(poly, vec4<f32>(1.0)), entropy > vec4<f32>(params.adapt_above));
    next.done = vec4<bool>(true);
    return next;
}

// The score that the weights are made of.
fn found_score(search: Search, s: vec4<f32>, j: u32) -> vec4<f32> {
    return select(s * search.beta, vec4<f32>(NOTHING), s == vec4<f32>(NOTHING));
}

fn found_max(search: Search) -> vec4<f32> {
    return vec4<f32>(NOTHING);
}

fn found_level(search: Search) -> vec4<f32> {
    return vec4<f32>(0.0);
}
