//! Where each statistic and table lies in its buffer.

use super::*;

#[test]
fn sections_follow_each_other() {
    let mut problem = plain([3, 4, 2, 5, 7, 8, 8])
        .with_kv_len()
        .causal(Alignment::PerBatch)
        .temperature(Temperature::PerRow);
    problem.stats = Stats { lse: true, entropy: false, row_max: true };
    let plan = plan(&problem, &Caps::webgpu_default());
    assert_eq!(plan.tables().range(Table::KvLen), Some(0..12));
    assert_eq!(plan.tables().range(Table::CausalOffset), Some(12..24));
    assert_eq!(plan.tables().range(Table::Temperature), Some(24..24 + 60 * 4));
    assert_eq!(plan.tables().bytes(), 24 + 60 * 4);
    assert_eq!(plan.stats_range(Stat::Lse), Some(0..240));
    assert_eq!(plan.stats_range(Stat::Entropy), None);
    assert_eq!(plan.stats_range(Stat::RowMax), Some(240..480));
    assert_eq!(plan.stats_bytes(), 480);
}
