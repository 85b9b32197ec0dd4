//! `check`.

use super::*;

/// A case that the library cannot do all of: gradients of two temperatures of one problem.
fn two_temperatures(folder: &std::path::Path) -> String {
    let bytes = std::fs::read(shipped("backward_plain")).unwrap();
    let (_, metadata) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let mut tensors = file.tensors();
    let taus = DType::F32.encode(&[1.0, 1.0]);
    let view = safetensors::tensor::TensorView::new(safetensors::Dtype::F32, vec![2], &taus).unwrap();
    tensors.push(("temperature_per_head".to_owned(), view));
    let path = folder.join("two_temperatures.safetensors");
    let contents = safetensors::serialize(tensors, metadata.metadata().clone()).unwrap();
    std::fs::write(&path, contents).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn check_passes_and_fails_by_the_format() {
    if !adapter("check_passes_and_fails_by_the_format") {
        return;
    }
    let files = folder();
    let (good, missing) = (shipped("causal_top_left_5_12"), two_temperatures(files.path()));
    let out = succeeds(&["check", "--kernel", "tiled", &good, &shipped("gqa_bshd_6_2")]);
    assert!(
        out.contains("causal_top_left_5_12") && out.contains("tiled") && out.contains("2 of 2 passed"),
        "{out}"
    );
    assert!(succeeds(&["check", "--kernel", "naive", &good]).contains("naive"));

    let (out, _, code) = finish(&["check", &good, &missing]);
    assert_eq!(code, 1);
    assert!(out.contains("FAIL  missing in this version: the gradient of the key temperature"), "{out}");
    assert!(out.contains("1 of 2 passed, 1 failed"), "{out}");

    let folder = folder();
    let bytes = std::fs::read(&good).unwrap();
    let broken = folder.path().join("broken.safetensors");
    std::fs::write(&broken, &bytes[..bytes.len() - 1]).unwrap();
    let (out, _, code) = finish(&["check", broken.to_str().unwrap(), &good, "nowhere.safetensors", &missing]);
    assert_eq!(code, 2);
    assert!(out.contains("nowhere.safetensors  ") && out.contains("FAIL  cannot be read"), "{out}");
    assert!(out.contains("1 of 4 passed, 1 failed, 2 could not be read"), "{out}");

    // One number of the expected output off.
    let wrong = folder.path().join("wrong.safetensors");
    let mut off = bytes.clone();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    let start = 8 + length + header["out"]["data_offsets"][0].as_u64().unwrap() as usize;
    off[start + 4 * 65..][..4].copy_from_slice(&100.0f32.to_le_bytes());
    std::fs::write(&wrong, off).unwrap();
    let (out, _, code) = finish(&["check", wrong.to_str().unwrap()]);
    assert_eq!(code, 1);
    assert!(out.contains("FAIL  out[0, 0, 4, 1] is") && out.contains("expected 1e2"), "{out}");
}

#[test]
fn check_json_has_the_promised_fields() {
    if !adapter("check_json_has_the_promised_fields") {
        return;
    }
    let files = folder();
    let (good, missing) = (shipped("causal_top_left_5_12"), two_temperatures(files.path()));
    let (out, err, code) =
        finish(&["check", "--kernel", "tiled", "--json", &good, &missing, "nowhere.safetensors"]);
    assert_eq!((code, err.as_str()), (2, ""));
    let lines: serde_json::Value = serde_json::from_str(&out).unwrap();
    let lines = lines.as_array().unwrap();
    assert_eq!(lines.len(), 3);
    for line in lines {
        let keys: Vec<_> = line.as_object().unwrap().keys().map(String::as_str).collect();
        let mut keys = keys.clone();
        keys.sort_unstable();
        assert_eq!(keys, ["file", "kernel", "max_abs", "max_rel", "name", "pass", "reason"]);
    }
    assert_eq!(lines[0]["file"], good);
    assert_eq!((&lines[0]["name"], &lines[0]["kernel"]), (&"causal_top_left_5_12".into(), &"tiled".into()));
    assert!(lines[0]["pass"] == true && lines[0]["max_abs"].is_f64() && lines[0]["reason"].is_null());
    assert!(lines[1]["pass"] == false && lines[1]["kernel"].is_null());
    assert!(lines[1]["reason"].as_str().unwrap().starts_with("missing in this version: the gradient of"));
    assert!(lines[2]["pass"] == false && lines[2]["reason"].as_str().unwrap().contains("cannot be read"));
}

/// What needs no adapter asks for none.
#[test]
fn check_needs_no_adapter_for_what_it_cannot_run() {
    let files = folder();
    let missing = two_temperatures(files.path());
    let (out, _, code) = finish(&["check", "--adapter", "no such adapter", &missing]);
    assert!(code == 1 && out.contains("missing in this version: the gradient of"), "{out}");
}
