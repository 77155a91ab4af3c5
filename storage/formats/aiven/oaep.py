"""RSA-OAEP with SHA3-512, also inside MGF1, and an empty label (spec/aiven-format.md §6; RFC 8017 §7.1).

The plugin wraps its data keys so (Bouncy Castle's `RSA/NONE/OAEPWithSHA3-512AndMGF1Padding`), and `cryptography`
refuses the combination, though it loads and checks the keys. Hence the padding and one modular power are our own:

- The private power is blinded: the number it is taken of is unknown to whoever sent the ciphertext, so the time it
  takes says nothing about key or plaintext.
- Its result is checked with the public key before use: one wrong bit in the Chinese remainder computation would
  otherwise give a factor of the modulus away.
- Whatever is wrong with a ciphertext, the error is the same, word for word, and no check is left out once another
  has failed (RFC 8017 §7.1.2: what tells the failures apart decrypts for an attacker).

Plaintext is a key for a segment, decrypted once in a segment's lifetime here: some milliseconds are no matter.
"""

import hashlib
import hmac
import math
import secrets

from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, RSAPrivateNumbers, RSAPublicKey

from storage.errors import CorruptObjectError, RemoteStorageError

HASH_BYTES = 64
OVERHEAD_BYTES = 2 * HASH_BYTES + 2
"""A leading zero, the seed, the label's hash and the separator: the modulus is longer than the message by these."""

DECRYPTION_ERROR = "does not decrypt with this private key: the text is damaged, or was made with another public key"

_LABEL_HASH = hashlib.sha3_512(b"").digest()


def oaep_decrypt(private_key: RSAPrivateKey, ciphertext: bytes) -> bytes:
    """The message that `oaep_encrypt` was given.

    Raises:
        CorruptObjectError: with DECRYPTION_ERROR as its text, whatever was wrong with the ciphertext.
        RemoteStorageError: this machine computed wrongly.
    """
    numbers = private_key.private_numbers()
    modulus = numbers.public_numbers.n
    modulus_bytes = _byte_count(modulus)
    number = int.from_bytes(ciphertext, "big")
    # What is public may be checked at once: the sender knows it as well as we do.
    if len(ciphertext) != modulus_bytes or number >= modulus or modulus_bytes < OVERHEAD_BYTES:
        raise CorruptObjectError(DECRYPTION_ERROR)
    return _unpadded(_blinded_private_power(numbers, number).to_bytes(modulus_bytes, "big"))


def oaep_encrypt(public_key: RSAPublicKey, message: bytes) -> bytes:
    """Encrypt a message of at most the modulus's size less OVERHEAD_BYTES; the result is as long as the modulus.

    Raises:
        ValueError: the message is longer than that.
    """
    numbers = public_key.public_numbers()
    modulus_bytes = _byte_count(numbers.n)
    return pow(
        int.from_bytes(_padded(message, modulus_bytes), "big"),
        numbers.e,
        numbers.n,
    ).to_bytes(modulus_bytes, "big")


def _padded(message: bytes, modulus_bytes: int) -> bytes:
    zero_count = modulus_bytes - OVERHEAD_BYTES - len(message)
    if zero_count < 0:
        raise ValueError(f"{len(message)} bytes do not fit an RSA modulus of {modulus_bytes} bytes")
    block = _LABEL_HASH + bytes(zero_count) + b"\x01" + message
    seed = secrets.token_bytes(HASH_BYTES)
    masked_block = _xor(block, _mask(seed, len(block)))
    masked_seed = _xor(seed, _mask(masked_block, HASH_BYTES))
    return b"\x00" + masked_seed + masked_block


def _unpadded(encoded: bytes) -> bytes:
    masked_seed, masked_block = encoded[1 : 1 + HASH_BYTES], encoded[1 + HASH_BYTES :]
    seed = _xor(masked_seed, _mask(masked_block, HASH_BYTES))
    block = _xor(masked_block, _mask(seed, len(masked_block)))
    padding = block[HASH_BYTES:]
    # Every check runs over every byte, and only their sum is looked at.
    is_bad = int(encoded[0] != 0) | int(not hmac.compare_digest(block[:HASH_BYTES], _LABEL_HASH))
    is_before_separator, message_start = 1, 0
    for position, byte in enumerate(padding, 1):
        is_separator = is_before_separator & int(byte == 1)
        is_bad |= is_before_separator & int(byte > 1)
        message_start |= position * is_separator
        is_before_separator &= 1 - is_separator
    if is_bad | is_before_separator:
        raise CorruptObjectError(DECRYPTION_ERROR)
    return padding[message_start:]


def _blinded_private_power(numbers: RSAPrivateNumbers, number: int) -> int:
    """number ** d modulo n."""
    modulus, public_exponent = numbers.public_numbers.n, numbers.public_numbers.e
    factor = _blinding_factor(modulus)
    blinded = number * pow(factor, public_exponent, modulus) % modulus
    power_p = pow(blinded, numbers.dmp1, numbers.p)
    power_q = pow(blinded, numbers.dmq1, numbers.q)
    power = power_q + numbers.iqmp * (power_p - power_q) % numbers.p * numbers.q
    if pow(power, public_exponent, modulus) != blinded:
        raise RemoteStorageError(
            "an RSA decryption failed its own check: this machine's processor or memory is at fault"
        )
    return power * pow(factor, -1, modulus) % modulus


def _blinding_factor(modulus: int) -> int:
    while True:
        factor = 2 + secrets.randbelow(modulus - 2)
        if math.gcd(factor, modulus) == 1:
            return factor


def _mask(seed: bytes, size_bytes: int) -> bytes:
    """MGF1 (RFC 8017 §B.2.1)."""
    blocks = (hashlib.sha3_512(seed + counter.to_bytes(4, "big")) for counter in range(-(-size_bytes // HASH_BYTES)))
    return b"".join(block.digest() for block in blocks)[:size_bytes]


def _xor(left: bytes, right: bytes) -> bytes:
    return (int.from_bytes(left, "big") ^ int.from_bytes(right, "big")).to_bytes(len(left), "big")


def _byte_count(number: int) -> int:
    return (number.bit_length() + 7) // 8
