//! `info`.

use super::*;

#[test]
fn info_says_which_kernel_and_why() {
    if !adapter("info_says_which_kernel_and_why") {
        return;
    }
    let out = succeeds(&["info"]);
    for word in ["driver", "limits", "because", "attention/"] {
        assert!(out.contains(word), "{out}");
    }
    let adapters: serde_json::Value = serde_json::from_str(&succeeds(&["info", "--json"])).unwrap();
    let adapters = adapters.as_array().unwrap();
    assert!(!adapters.is_empty());
    for adapter in adapters {
        assert!(adapter["name"].is_string() && adapter["driver"].is_string());
        assert!(adapter["limits"]["max_buffer_size"].as_u64().unwrap() > 0);
        assert!(adapter["kernels"].as_array().unwrap().iter().all(|k| k["reason"].is_string()));
    }
    fails(&["info", "--adapter", "no such adapter"], 3, &["no such adapter"]);
    fails(&["run", &shipped("causal_len_2"), "--adapter", "no such adapter"], 3, &["no such adapter"]);
}
