"""The protocol a second time, from its description alone: an engine and a client of a few lines of pyzmq and msgpack.

witness.py engine ADDRESS PROFILE prefill|decode   serves requests until it is killed
witness.py client ADDRESS PROFILE COUNT            sends COUNT requests, prints one JSON line for each reply

With NAME, SECRET_KEY and SERVER_KEY in the environment the connection is encrypted, under that name.
"""
import json
import os
import sys

import msgpack
import zmq

sys.dont_write_bytecode = True
import curve_name

CONNECT, CONNECT_ACK, ROLE_ACK, SUBMIT, REPLY, PARTIAL = 0, 1, 2, 20, 21, 22
SUBMIT_KV, RELEASE, REGISTER_ROLE, READ_DONE, ERROR = 24, 25, 27, 28, 29


def pack(value):
    return msgpack.packb(value, use_bin_type=True)


def unpack(frame):
    return msgpack.unpackb(frame, raw=False)


def dealer(address, identity=None):
    socket = zmq.Context.instance().socket(zmq.DEALER)
    socket.linger = 0
    socket.rcvtimeo = 60000
    if "SECRET_KEY" in os.environ:
        keys = [os.environ[key].encode() for key in ("NAME", "SECRET_KEY", "SERVER_KEY")]
        curve_name.secure(socket, *keys)
    elif identity:
        socket.setsockopt(zmq.IDENTITY, identity.encode())
    socket.connect(address)
    return socket


def engine(address, profile, role):
    single = profile == "single-frame"
    socket = dealer(address, role + "_s0_dp0")
    meta = {
        "request_capacity": 8,
        "tokens_per_block": 16,
        "element_size": 2,
        "head_dim": 128,
        "num_layers_global": 4,
        "num_kv_heads_global": 8,
    }
    socket.send(pack([REGISTER_ROLE, role, "nixl", [meta]]))
    answer = unpack(socket.recv())
    if answer[0] == ERROR:
        print("refused:", answer[1], flush=True)
        return
    assert answer == [ROLE_ACK]
    print("registered", flush=True)

    def reply(body):
        if single:
            socket.send(pack([REPLY, [body]]))
        else:
            socket.send_multipart([pack([REPLY, [[body["request_id"], False]]]), pack(body)])

    while True:
        frames = socket.recv_multipart()
        message = unpack(frames[0])
        header, rid = message[0], message[1] if len(message) > 1 else None
        if header == SUBMIT:
            assert role == "prefill"
            prompt, sampling = (message[2], message[3]) if single else (unpack(frames[1]), message[2])
            assert sampling["do_kv_handoff"] is True and sampling["num_tokens_to_generate"] == 0
            assert type(sampling["temperature"]) is float
            kv_meta = {"resume_tokens": [sum(prompt) % 1000], "base_addr": 2**63 + 5, "scale": 1.0}
            params = {"request_id": rid, "block_ids": [4, 5], "kv_meta": kv_meta}
            reply({"request_id": rid, "disaggregated_params": params})
        elif header == SUBMIT_KV:
            assert role == "decode"
            if single:
                prompt, sampling, kv_meta, blocks = message[2:6]
            else:
                (sampling, kv_meta), prompt, blocks = message[2:4], unpack(frames[1]), unpack(frames[2])
            assert "do_kv_handoff" not in sampling and blocks == [4, 5]
            assert kv_meta["base_addr"] == 2**63 + 5 and type(kv_meta["scale"]) is float
            socket.send(pack([READ_DONE, rid]))
            first = kv_meta["resume_tokens"][0]
            tokens = [first + step for step in range(sampling["num_tokens_to_generate"])]
            partial = {"request_id": rid, "new_tokens": tokens[:1]}
            if single:
                socket.send(pack([PARTIAL, [partial]]))
            else:
                socket.send_multipart([pack([PARTIAL, [rid]]), pack(partial)])
            reply({"request_id": rid, "status": "COMPLETED", "generated_tokens": tokens, "latency": 1.0})
        elif header == RELEASE and rid != 2**53 - 1:
            print("released", flush=True)


def client(address, profile, count):
    single = profile == "single-frame"
    socket = dealer(address)
    socket.send(pack([CONNECT]))
    assert unpack(socket.recv())[0] == CONNECT_ACK
    for number in range(count):
        prompt = [number, 70000, 3]
        sampling = {"temperature": 1.0, "top_k": 1, "num_tokens_to_generate": 3}
        if single:
            socket.send(pack([SUBMIT, number, prompt, sampling]))
        else:
            frames = [[SUBMIT, number, sampling, None], prompt, None, None, None]
            socket.send_multipart([pack(frame) for frame in frames])
    left = count
    while left > 0:
        frames = socket.recv_multipart()
        message = unpack(frames[0])
        if message[0] == CONNECT_ACK:
            # Whenever somebody disconnects: are you still there?
            continue
        body = message[2] if single else unpack(frames[1])
        print(json.dumps([message[0], message[1], body.get("new_tokens") or body.get("generated_tokens")]), flush=True)
        left -= message[0] == REPLY


if __name__ == "__main__":
    what, address, profile, last = sys.argv[1:]
    if what == "engine":
        engine(address, profile, last)
    else:
        client(address, profile, int(last))
