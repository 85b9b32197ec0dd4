//! `softmax`.

use super::*;

/// Along any axis, to both kinds of files, against float64.
#[test]
fn softmax_of_a_file() {
    if !adapter("softmax_of_a_file") {
        return;
    }
    let folder = folder();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let x = npy(&folder.path().join("x.npy"), "<f4", false, &[3, 4, 5], &bytes(&numbers(60, 0.7)));
    let taus = npy(&folder.path().join("taus.npy"), "<f4", false, &[15], &bytes(&[0.5; 15]));
    for kind in ["softmax", "log-softmax", "sparsemax", "entmax15"] {
        let out = at("out.npy");
        let text = succeeds(&[
            "softmax",
            &x,
            "--kind",
            kind,
            "--temperature",
            "0.5",
            "--axis",
            "1",
            "--check",
            "-o",
            &out,
        ]);
        assert!(text.contains("% of its bound"), "{text}");
        let per_row = at("per_row.npy");
        succeeds(&[
            "softmax",
            &x,
            "--kind",
            kind,
            "--temperature-per-row",
            &taus,
            "--axis",
            "-2",
            "--check",
            "-o",
            &per_row,
        ]);
        let file = std::fs::read(&out).unwrap();
        assert_eq!(file.len() % 64, 60 * 4 % 64);
        assert_eq!(file.len(), std::fs::read(&per_row).unwrap().len());
    }
    let all = at("all.safetensors");
    let text = succeeds(&["softmax", &x, "--lse", "--entropy", "--argmax", "--check", "-o", &all]);
    assert!(text.contains("nats in the mean"), "{text}");
    let file = std::fs::read(&all).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&file).unwrap();
    for (name, shape) in [("out", &[3, 4, 5][..]), ("lse", &[12]), ("entropy", &[12]), ("argmax", &[12])] {
        assert_eq!(tensors.tensor(name).unwrap().shape(), shape);
    }

    fails(&["softmax", &x, "--temperature", "0"], 2, &["temperature", "above 0"]);
    fails(&["softmax", &x, "--axis", "3"], 2, &["--axis is 3", "[3, 4, 5]"]);
    fails(&["softmax", &x, "--kind", "sparsemax", "--lse"], 2, &["lse", "sparsemax"]);
    fails(&["softmax", &x, "--temperature-per-row", &x], 2, &["temperature", "60", "12"]);
    fails(&["softmax", &x, "--entropy", "-o", &at("one.npy")], 2, &["safetensors"]);
    fails(&["softmax", "nowhere.npy"], 2, &["nowhere.npy", "cannot be read"]);
}
