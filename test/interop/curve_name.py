"""CURVE and the names that prove themselves, from docs/coordinator.md alone: X25519 of RFC 7748, HKDF of RFC 5869."""
import base64
import hashlib
import hmac
import os

import zmq
from zmq.utils import z85

PRIME = 2**255 - 19


def x25519(secret, point):
    k = int.from_bytes(secret, "little") & ~7 & (2**255 - 1) | 2**254
    x1 = int.from_bytes(point, "little") & (2**255 - 1)
    x2, z2, x3, z3 = 1, 0, x1, 1
    for at in reversed(range(255)):
        bit = k >> at & 1
        if bit:
            x2, z2, x3, z3 = x3, z3, x2, z2
        a, b, c, d = x2 + z2, x2 - z2, x3 + z3, x3 - z3
        aa, bb, da, cb = a * a, b * b, d * a, c * b
        x3, z3 = (da + cb) ** 2 % PRIME, x1 * (da - cb) ** 2 % PRIME
        e = aa - bb
        x2, z2 = aa * bb % PRIME, e * (aa + 121665 * e) % PRIME
        if bit:
            x2, z2, x3, z3 = x3, z3, x2, z2
    return (x2 * pow(z2, PRIME - 2, PRIME) % PRIME).to_bytes(32, "little")


def mac(key, message):
    return hmac.new(key, message, hashlib.sha256).digest()


def text(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def proven(name, secret_key, server_key):
    """The routing id NAME.NONCE.PROOF."""
    shared = x25519(z85.decode(secret_key), z85.decode(server_key))
    salt = server_key + zmq.curve_public(secret_key)
    key = mac(mac(salt, shared), b"state-handoff proven name 1\x01")
    said = name + b"." + text(os.urandom(16))
    return said + b"." + text(mac(key, said))


def secure(socket, name, secret_key, server_key):
    socket.curve_secretkey = secret_key
    socket.curve_publickey = zmq.curve_public(secret_key)
    socket.curve_serverkey = server_key
    socket.setsockopt(zmq.IDENTITY, proven(name, secret_key, server_key))
