"""A ROUTER that decodes the metadata frame of what it gets, encodes it again and sends everything back: pyzmq and msgpack
alone, beside which the coordinator's bench puts its figures. Prints its address; runs until it is killed."""
import msgpack
import zmq

router = zmq.Context.instance().socket(zmq.ROUTER)
router.sndhwm = router.rcvhwm = 0
port = router.bind_to_random_port("tcp://127.0.0.1")
print(f"tcp://127.0.0.1:{port}", flush=True)
while True:
    identity, metadata, *payload = router.recv_multipart()
    router.send_multipart([identity, msgpack.packb(msgpack.unpackb(metadata)), *payload])
