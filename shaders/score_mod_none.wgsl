// Stands in for the user's score function where there is none. Never called.
fn user_score_mod(score: f32, batch: u32, head: u32, q_index: u32, k_index: u32) -> f32 {
    return score;
}
