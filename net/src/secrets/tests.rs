use proptest::prelude::*;

use super::*;

/// Bytes 0 to 31. The vectors below come from Python's `hmac`, `hashlib` and `cryptography`.
fn counting_key() -> SecretsKey {
    SecretsKey::new(std::array::from_fn(|i| u8::try_from(i).unwrap()))
}

#[test]
fn id_is_the_beginning_of_the_digest() {
    assert_eq!(counting_key().id(), "630dcd2966c43366");
}

#[test]
fn derived_key_is_that_of_another_implementation() {
    assert_eq!(
        hex::encode(counting_key().derive("affinity/v1")),
        "581320d91c6b6a825b201c4695dd289af3b551cc57c6068123857c1fd818f731"
    );
}

#[test]
fn labels_and_entities_derive_different_keys() {
    let key = counting_key();
    assert_ne!(key.derive("affinity/v1"), key.derive("probe/v1"));
    assert_ne!(
        key.derive("affinity/v1"),
        SecretsKey::new([7; KEY_BYTES]).derive("affinity/v1")
    );
}

#[test]
fn value_sealed_by_another_implementation_opens() {
    let sealed = hex::decode(
        "016465666768696a6b6c6d6e6f30b18a0d2d280bc5e6b07219754c18f3f4017bb9cae87895dacd33",
    )
    .unwrap();
    let opened = counting_key().open("imported_cert/example.com", 7, &sealed);
    assert_eq!(opened.unwrap().expose(), b"private key");
}

#[test]
fn same_value_is_sealed_differently_each_time() {
    let key = counting_key();
    assert_ne!(
        key.seal("a", 1, b"x").unwrap(),
        key.seal("a", 1, b"x").unwrap()
    );
}

#[test]
fn value_opens_only_in_its_own_row() {
    let key = SecretsKey::generate().unwrap();
    let sealed = key.seal("secret/web/DB", 3, b"hunter2").unwrap();
    assert_eq!(
        key.open("secret/web/DB", 3, &sealed).unwrap().expose(),
        b"hunter2"
    );
    assert_eq!(key.open("secret/web/DB", 4, &sealed), Err(Error::Open));
    assert_eq!(key.open("secret/api/DB", 3, &sealed), Err(Error::Open));
    let other = SecretsKey::generate().unwrap();
    assert_eq!(other.open("secret/web/DB", 3, &sealed), Err(Error::Open));
}

#[test]
fn value_of_an_unknown_format_is_refused() {
    let key = counting_key();
    let mut sealed = key.seal("a", 1, b"x").unwrap();
    sealed[0] = 2;
    assert_eq!(key.open("a", 1, &sealed), Err(Error::Format));
    assert_eq!(key.open("a", 1, &[]), Err(Error::Format));
    assert_eq!(key.open("a", 1, &[FORMAT; 12]), Err(Error::Format));
}

#[test]
fn text_of_a_key_is_read_back() {
    let key = SecretsKey::generate().unwrap();
    let text = key.to_text();
    assert_eq!(text.expose().len(), 2 * KEY_BYTES + 1);
    assert_eq!(SecretsKey::parse(text.expose()), Ok(key));
    for text in [
        "",
        "00",
        "zz",
        &"0".repeat(63),
        &"0".repeat(66),
        &"g".repeat(64),
    ] {
        assert_eq!(SecretsKey::parse(text), Err(Error::KeyText), "{text:?}");
    }
    assert_eq!(SecretsKey::from_slice(&[0; 31]), Err(Error::KeyLength));
}

#[test]
fn debug_shows_the_id_only() {
    assert_eq!(
        format!("{:?}", counting_key()),
        "SecretsKey(<redacted>, id 630dcd2966c43366)"
    );
}

proptest! {
    #[test]
    fn any_value_is_opened_again(
        key in any::<[u8; KEY_BYTES]>(), entity in ".{0,40}", version in any::<u64>(),
        value in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        let key = SecretsKey::new(key);
        let sealed = key.seal(&entity, version, &value).unwrap();
        prop_assert_eq!(sealed.len(), value.len() + OVERHEAD);
        let opened = key.open(&entity, version, &sealed).unwrap();
        prop_assert_eq!(opened.expose(), &value[..]);
    }

    #[test]
    fn one_changed_bit_is_noticed(
        value in prop::collection::vec(any::<u8>(), 0..40), at in any::<prop::sample::Index>(),
        bit in 0..8_u8,
    ) {
        let key = counting_key();
        let mut sealed = key.seal("a", 1, &value).unwrap();
        let at = at.index(sealed.len());
        sealed[at] ^= 1 << bit;
        prop_assert!(key.open("a", 1, &sealed).is_err());
    }

    #[test]
    fn any_bytes_are_refused_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
        prop_assert!(counting_key().open("a", 1, &bytes).is_err());
    }

    #[test]
    fn any_text_is_a_key_or_an_error(text in ".{0,80}") {
        let _ = SecretsKey::parse(&text);
    }
}
