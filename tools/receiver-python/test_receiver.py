"""Tests of the receiver. Run with: python -m unittest discover --start-directory tools/receiver-python"""

import asyncio
import base64
import datetime
import pathlib
import tempfile
import unittest

import standardwebhooks

import receiver

SECRET = "whsec_" + base64.b64encode(bytes(range(32))).decode()
RUN = "0" * 52


def request(body, signature=None, at=None):
    at = at or datetime.datetime.now(tz=datetime.timezone.utc)
    signature = signature or standardwebhooks.Webhook(SECRET).sign(RUN, at, body.decode())
    head = [
        "POST /hook HTTP/1.1",
        "host: here",
        f"content-length: {len(body)}",
        f"webhook-id: {RUN}",
        f"webhook-timestamp: {int(at.timestamp())}",
        f"webhook-signature: {signature}",
        "reveille-attempt: 1",
        "reveille-scheduled-at: 2026-11-21T10:00:00.125Z",
        "reveille-schedule-id: s1",
    ]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


class Receiving(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.log = pathlib.Path(self.folder.name) / "log"
        self.stop = asyncio.Event()
        port = asyncio.get_running_loop().create_future()
        webhook = standardwebhooks.Webhook(SECRET)
        served = receiver.listen("127.0.0.1", 0, webhook, receiver.Log(self.log), port.set_result, self.stop)
        self.served = asyncio.create_task(served)
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", await port)

    async def asyncTearDown(self):
        self.writer.close()
        self.folder.cleanup()

    async def answer(self, *pieces):
        for piece in pieces:
            self.writer.write(piece)
            await self.writer.drain()
        head = await self.reader.readuntil(b"\r\n\r\n")
        if b"content-length: 2" in head:
            await self.reader.readexactly(2)
        return int(head.split()[1])

    async def lines(self):
        self.stop.set()
        await self.served
        return self.log.read_text().splitlines()

    async def test_signed_callback_is_accepted_and_logged(self):
        self.assertEqual(await self.answer(request(b'{"a": 1}')), 200)
        (line,) = await self.lines()
        arrived_us, *rest = line.split()
        self.assertEqual(rest, [RUN, "1", "1795255200125", "1", "s1"])
        self.assertLess(abs(int(arrived_us) / 1e6 - datetime.datetime.now().timestamp()), 60)

    async def test_connection_serves_several_requests_in_pieces(self):
        whole = request(b'"two"')
        self.assertEqual(await self.answer(request(b"1")), 200)
        self.assertEqual(await self.answer(whole[:30], whole[30:-2], whole[-2:]), 200)
        self.assertEqual(len(await self.lines()), 2)

    async def test_invalid_signature_is_rejected_and_logged(self):
        forged = "v1," + base64.b64encode(bytes(32)).decode()
        for bad in [forged, "v1,?", "nonsense", "v2,AAAA"]:
            self.assertEqual(await self.answer(request(b"1", signature=bad)), 401, bad)
        altered = request(b"1")[:-1] + b"2"
        self.assertEqual(await self.answer(altered), 401)
        self.assertEqual([line.split()[4] for line in await self.lines()], ["0"] * 5)

    async def test_malformed_http_is_answered_with_400_and_closed(self):
        self.assertEqual(await self.answer(b"\x00\x01\x02\r\n\r\n"), 400)
        self.assertEqual(await self.reader.read(), b"")
        self.assertEqual(await self.lines(), [])


class Judging(unittest.TestCase):
    def judge(self, lines, acknowledged):
        verdict = receiver.judge(lines, set(acknowledged))
        return {name: verdict[name] for name in verdict if verdict[name] and not name.startswith("lateness")}

    def test_missing_callback_is_lost(self):
        self.assertEqual(self.judge(["2000000 r1 1 1500 1 s1\n"], ["s1", "s2"]), {"arrived": 1, "lost": 1})

    def test_second_arrival_of_a_run_is_doubled(self):
        lines = ["2000000 r1 1 1500 1 s1\n", "2000001 r1 2 1500 1 s1\n"]
        self.assertEqual(self.judge(lines, ["r1"]), {"arrived": 1, "doubled": 1})

    def test_arrival_before_its_instant_is_early(self):
        self.assertEqual(self.judge(["1499999 r1 1 1500 1 s1\n"], ["s1"]), {"arrived": 1, "early": 1})
        self.assertEqual(self.judge(["1500000 r1 1 1500 1 s1\n"], ["s1"]), {"arrived": 1})

    def test_unverified_arrival_does_not_count(self):
        self.assertEqual(self.judge(["2000000 r1 1 1500 0 s1\n"], ["s1"]), {"lost": 1, "unverified": 1})

    def test_arrival_without_acknowledgement_is_strange(self):
        self.assertEqual(self.judge(["2000000 r1 1 1500 1 s1\n", "half a li"], []), {"strange": 2})

    def test_lateness_is_measured_at_first_arrivals(self):
        lines = [f"{1_500_000 + late} r{late} 1 1500 1 s1\n" for late in range(100)] + ["9500000 r5 2 1500 1 s1\n"]
        verdict = receiver.judge(lines, {"s1"})
        self.assertEqual((verdict["lateness_p50_us"], verdict["lateness_max_us"]), (50, 99))


class Fields(unittest.TestCase):
    def test_value_that_would_corrupt_the_log_is_omitted(self):
        for text in [None, "", "a b", "a\nb", "\xe9", "x" * 257]:
            self.assertEqual(receiver.field(text), "-")

    def test_instant_is_parsed_to_the_millisecond_in_every_zone(self):
        self.assertEqual(receiver.nominal_ms("1970-01-01T00:00:01.001Z"), "1001")
        self.assertEqual(receiver.nominal_ms("1970-01-01T01:00:00.999+01:00"), "999")
        for text in [None, "", "soon", "1970-01-01T00:00:00"]:
            self.assertIsNone(receiver.nominal_ms(text))


if __name__ == "__main__":
    unittest.main()
