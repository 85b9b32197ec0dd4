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

// Private to the thread, and not handed from function to function: compilers are slow to take copies of it apart.
var<private> search: Search = Search();

fn is_found() -> vec4<bool> {
    return search.done;
}

fn start_search(live: vec4<bool>) {
    let zero = vec4<f32>(0.0);
    search = Search(array<vec4<f32>, MAXIMA>(vec4<f32>(NOTHING)), array<vec4<f32>, SUMS>(zero, zero), vec4<f32>(1.0), !live);
}

fn gather(s: vec4<f32>, j: u32) {
    let m = max(search.maxima[0u], s);
    in_terms_of(array<vec4<f32>, MAXIMA>(m));
    let p = weight_masked(s, m, vec4<f32>(0.0));
    search.sums[0u] += p;
    search.sums[1u] += entropy_term(s, m, p);
}

fn in_terms_of(maxima: array<vec4<f32>, MAXIMA>) {
    let old = State(search.maxima[0u], search.sums[0u], search.sums[1u]);
    let state = rebase(old, maxima[0u], shift(old, maxima[0u]));
    search.maxima[0u] = state.m;
    search.sums[0u] = state.l;
    search.sums[1u] = state.u;
}

fn advance() {
    let l = max(search.sums[0u], vec4<f32>(1.0)); // a row's largest key adds 1; 0 is a row that sees none
    let entropy = (l * (log2(l) * LOG2_UNIT) - search.sums[1u]) / l * (LN_2 / LOG2_UNIT);
    var poly = vec4<f32>(params.adapt_4);
    poly = poly * entropy + params.adapt_3;
    poly = poly * entropy + params.adapt_2;
    poly = poly * entropy + params.adapt_1;
    poly = poly * entropy + params.adapt_0;
    search.beta = select(vec4<f32>(1.0), max(poly, vec4<f32>(1.0)), entropy > vec4<f32>(params.adapt_above));
    search.done = vec4<bool>(true);
}

// The score that the weights are made of.
fn found_score(s: vec4<f32>, j: u32) -> vec4<f32> {
    return select(s * search.beta, vec4<f32>(NOTHING), s == vec4<f32>(NOTHING));
}

fn found_max() -> vec4<f32> {
    return vec4<f32>(NOTHING);
}

fn found_level() -> vec4<f32> {
    return vec4<f32>(0.0);
}
